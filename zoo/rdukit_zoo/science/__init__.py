"""Models of the sciences: drug response, diffraction peaks and phases, traffic on graphs, polymers."""

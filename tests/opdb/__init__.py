"""All operators of torch, as its own table `op_db` lists them, through compiler and engine: cases, judgement, page."""

"""Training loops: on the device (``samba``) and on the host (``torch``)."""

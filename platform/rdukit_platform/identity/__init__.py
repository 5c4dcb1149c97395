"""Login by OpenID Connect, sessions of the console, and devices that are let in."""

"""How the hosts of a run share what their ranks learn."""

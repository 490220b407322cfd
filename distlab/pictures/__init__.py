"""The drawn ideas of the labs: ``python -m distlab pictures`` writes each as an SVG beside labs and solutions."""

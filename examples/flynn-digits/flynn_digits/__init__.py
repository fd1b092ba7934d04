"""FlyNN on handwritten digits, as an app for Flower's hub."""

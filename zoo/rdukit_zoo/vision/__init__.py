"""Models of images and volumes: classification and segmentation."""

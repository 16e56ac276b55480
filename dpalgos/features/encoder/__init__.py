"""A convolutional encoder."""

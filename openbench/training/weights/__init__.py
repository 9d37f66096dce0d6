"""From a training job to trained weights: found, or trained first."""

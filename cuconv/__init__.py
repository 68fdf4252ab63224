"""Short convolutions and state-space operators for NVIDIA GPUs, compiled on demand."""

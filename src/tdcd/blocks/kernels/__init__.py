"""Kernels for convolutions on NVIDIA GPUs, where every client has its own weights.

Each kernel is that of one client; mapped over clients it runs for all of them at once. A program beyond a client's rows
does nothing. Arrays between layers are float16, scaled by powers of two, and sums are float32, so that numbers are as
exact as with TF32 factors, for half the bytes. In full float32 a number is the sum of two such halves, and a product
that of three. No image is unfolded in memory.
"""

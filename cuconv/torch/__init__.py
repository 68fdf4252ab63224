"""PyTorch: derivatives, torch.compile, modules, and cuconv in the place of other packages.

Imported by programs that ask for it, and by the public functions when torch traces a call, when autograd follows a
tensor of it, or when a tensor has no memory. Nothing else of the package imports torch.
"""

"""What one launch of a script takes: ranks on virtual GPUs, their traces collated and replayed."""

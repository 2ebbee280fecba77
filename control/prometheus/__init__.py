"""What Prometheus reads of the control plane, and the rules that it is given."""

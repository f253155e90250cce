//! Kubernetes objects both sides speak.

//! Try-out and end-to-end kit.

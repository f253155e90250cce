//! What a board can do.

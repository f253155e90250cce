//! The life of a ConfigMap under a node: it is deleted, made again, renamed, edited, as often and as oddly as it goes.

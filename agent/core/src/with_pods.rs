//! What only an agent with the feature `pods` has. Without it the agent keeps its configuration, its heartbeat
//! and its credential, and runs no pods.
//!
//! Always holds: only an agent that was built with pods can make a [`WithPods`]. So an agent without them
//! has nothing in a [`PodPart`], and the compiler leaves out all code behind one: that code needs no `cfg` of
//! its own, and both agents are compiled from the same lines.

/// The proof that this agent was built with pods.
#[cfg(feature = "pods")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WithPods(());

/// The proof that this agent was built with pods: there is none.
#[cfg(not(feature = "pods"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithPods {}

impl WithPods {
    /// `None` in an agent without pods.
    #[cfg(feature = "pods")]
    pub const fn built() -> Option<Self> {
        Some(Self(()))
    }

    /// `None` in an agent without pods.
    #[cfg(not(feature = "pods"))]
    pub const fn built() -> Option<Self> {
        None
    }
}

pub use part::PodPart;

#[cfg(feature = "pods")]
mod part {
    /// A part that only a node with pods has, if it was made.
    #[derive(Debug, Clone)]
    pub struct PodPart<T>(Option<T>);

    impl<T> PodPart<T> {
        /// Makes the part in an agent that was built with pods, if the node is to have it.
        pub fn of(make: impl FnOnce() -> Option<T>) -> Self {
            Self(make())
        }

        /// The part.
        pub fn as_ref(&self) -> Option<&T> {
            self.0.as_ref()
        }

        /// The part, to change it.
        pub fn as_mut(&mut self) -> Option<&mut T> {
            self.0.as_mut()
        }

        /// The part itself.
        pub fn into_inner(self) -> Option<T> {
            self.0
        }
    }
}

/// The same doors, with nothing behind. An `Option` of a type without values would not do: the compiler
/// keeps what it would hold, 0.5 MB.
#[cfg(not(feature = "pods"))]
mod part {
    use std::marker::PhantomData;

    /// A part that only a node with pods has: there is none.
    #[derive(Debug, Clone)]
    pub struct PodPart<T>(PhantomData<T>);

    impl<T> PodPart<T> {
        /// Makes nothing.
        pub fn of(_: impl FnOnce() -> Option<T>) -> Self {
            Self(PhantomData)
        }

        /// `None`.
        pub fn as_ref(&self) -> Option<&T> {
            None
        }

        /// `None`.
        pub fn as_mut(&mut self) -> Option<&mut T> {
            None
        }

        /// `None`.
        pub fn into_inner(self) -> Option<T> {
            None
        }
    }
}

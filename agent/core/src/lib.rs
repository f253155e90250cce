//! Decisions of the agent: events in, actions out.

//! The pages of the fleet: `/fleet`, its lists, nodes and rollouts, as HTML.
//!
//! Owns: the content of each page, and its order. Always holds: a page is a function of its arguments; it has
//! no script, no form and nothing from elsewhere. A part that its reader may not read is left out, not empty.
//! Every table is cut at a named number of rows and shows how many it leaves out. Each number leads to the
//! list that it counts, and shows how kubectl counts it. Left to others: the rights of readers, and the
//! headers (`kedge-hub`), the numbers ([`crate::state::fleet`]).

mod commands;
mod difference;
mod frame;
mod html;
mod lists;
mod node;
mod overview;
mod picture;
mod rollout;
mod sees;

pub use difference::payload;
pub use frame::{Frame, STYLE, ago};
pub use lists::{Listed, MOST_LISTED, list};
pub use node::{MOST_EVENTS, MOST_PODS, Shown, VERSIONS, node};
pub use overview::{Fact, Knock, Numbers, Overview, overview};
pub use rollout::{Rollout, rollout};
pub use sees::Sees;

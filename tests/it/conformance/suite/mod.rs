//! The checks.

pub mod dropped;
pub mod exclusion;
pub mod fencing;
pub mod holder;
pub mod line;
pub mod line_of_runs;
pub mod min_hold;
pub mod names;
pub mod nesting;
pub mod nesting_refused;
pub mod ownership;
pub mod places;
pub mod revoking;
pub mod sharing;
pub mod slots;
pub mod together;

//! A lock on a majority of independent masters.

mod data_loss;
mod doctor;
mod exclusion;
mod fencing;
mod fixture;
mod frozen;
mod node_failures;
mod once_per;
mod queue;
mod split_votes;
mod urls;

//! A lock on a majority of independent masters.

mod data_loss;
mod doctor;
mod exclusion;
mod fencing;
mod node_failures;
mod queue;
mod scene;
mod split_votes;
mod urls;

//! A lock on a majority of independent masters.

mod examining;
mod exclusion;
mod fencing;
mod forgetting;
mod losing;
mod scene;
mod splitting;
mod urls;
mod waiting;

//! Generated output of dlock about itself: completion scripts and man pages.

mod completion_values;
mod completions;
mod pages;
mod shell;

//! What dlock prints about itself: completion scripts and man pages.

mod completions;
mod pages;
mod questions;
mod shell;

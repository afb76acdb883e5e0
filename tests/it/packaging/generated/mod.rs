//! Generated output of dlock about itself: completion scripts and man pages.

mod completion_values;
mod completions;
mod page_lists;
mod pages;
mod shell;

//! The binary; does nothing yet.

fn main() {}

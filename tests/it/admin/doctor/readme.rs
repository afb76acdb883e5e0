//! The diagnosis in README.md is a real one.

use super::without_numbers;
use crate::packaging::readme::{Sandbox, all_blocks};

/// The heading of its section.
pub const SECTION: &str = "Is this store fit?";

#[test]
fn the_diagnosis_in_the_readme_matches_the_output_of_doctor() {
    let blocks = all_blocks().into_iter();
    let [block] = blocks
        .filter(|block| block.section == SECTION && block.language == "console")
        .collect::<Vec<_>>()
        .try_into()
        .ok()
        .expect("one diagnosis");
    let (command, shown) = block.text.split_first().expect("a command");
    let command = command.strip_prefix("$ ").expect("a command");
    let output = Sandbox::new().run(command);
    let printed = String::from_utf8(output.stdout).unwrap();
    // The reader's server has another name and another address.
    let (shown, printed) = (without_numbers(&shown.join("\n")), without_numbers(&printed));
    let shown = shown.replace("redis.example.com", "N");
    assert_eq!((output.status.code(), printed), (Some(0), shown));
}

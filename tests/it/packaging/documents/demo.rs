//! The picture in README.md matches a new recording.

use std::process::Command;

use crate::support::dlock::BINARY;
use crate::support::place::Place;

/// The texts of a picture, without process ids and ages.
fn texts(picture: &str) -> Vec<String> {
    let lines = picture.lines().filter_map(|line| line.split_once("\">")?.1.strip_suffix("</text>"));
    lines.map(without_numbers).collect()
}

/// A text with `N` for each number and duration.
fn without_numbers(text: &str) -> String {
    let word = |word: &str| match word.trim_end_matches([',', ';']).trim_end_matches(['s', 'm']) {
        number if number.parse::<f64>().is_ok() => "N".to_owned(),
        _ => word.to_owned(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_picture_of_the_readme_matches_a_new_recording() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/demo");
    let place = Place::new();
    let recorded = place.path("demo.svg");
    let output = Command::new("python3")
        .arg(directory.join("record.py"))
        .args([BINARY.as_ref(), recorded.as_os_str()])
        .output()
        .expect("python3 can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |path| texts(&std::fs::read_to_string(path).unwrap());
    let (committed, recorded) = (read(directory.join("demo.svg")), read(recorded));
    assert!(committed.len() >= 6, "{committed:?}");
    assert_eq!(committed, recorded, "run packaging/demo/record.py");
}

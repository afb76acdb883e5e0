//! The order of names for people: `job-2` comes before `job-10`.

use std::cmp::Ordering;

use super::LockName;

/// Compares names as bytes, but runs of digits as numbers.
pub fn natural_order(one: &LockName, other: &LockName) -> Ordering {
    natural_order_of(one.as_str(), other.as_str())
}

/// Compares other texts in the same way, such as the names of hosts.
pub fn natural_order_of(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one.as_bytes(), other.as_bytes());
    while let ([first, after_first @ ..], [second, after_second @ ..]) = (left, right) {
        let order = if first.is_ascii_digit() && second.is_ascii_digit() {
            let (number, other_number);
            (number, left) = number_at_start(left);
            (other_number, right) = number_at_start(right);
            number.len().cmp(&other_number.len()).then(number.cmp(other_number))
        } else {
            (left, right) = (after_first, after_second);
            first.cmp(second)
        };
        if order.is_ne() {
            return order;
        }
    }
    // Names may differ in leading zeros alone.
    left.len().cmp(&right.len()).then_with(|| one.cmp(other))
}

/// Returns the digits at the start, without leading zeros, and the rest.
fn number_at_start(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    (&digits[zeros..], rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_compared_as_numbers() {
        let sorted = [
            "01",
            "1",
            "2",
            "10",
            "a",
            "a-b",
            "a0",
            "a00",
            "a1",
            "a1-2",
            "a1-10",
            "a1b",
            "a2",
            "a10",
            "a10b2",
            "b",
            "job-2",
            "job-10",
            "job-99999999999999999999",
            "job-100000000000000000000",
            "z",
            "é",
        ];
        let mut names: Vec<LockName> =
            sorted.iter().rev().map(|name| LockName::new(name).expect("a name")).collect();
        names.sort_by(natural_order);
        assert_eq!(names.iter().map(LockName::as_str).collect::<Vec<_>>(), sorted);
    }
}

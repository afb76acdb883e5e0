//! The elements of a reply in XML, as far as they are needed: texts without attributes.

/// Returns the text of the first element of this name in a reply in XML, unescaped.
pub fn element(xml: &str, name: &str) -> Option<String> {
    elements(xml, name).next()
}

/// Returns the texts of all elements of this name.
pub fn elements<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = String> + 'a {
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&start)?;
        let (text, after) = after.split_once(&end)?;
        rest = after;
        Some(unescaped(text))
    })
}

fn unescaped(text: &str) -> String {
    let plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    plain.replace("&#34;", "\"").replace("&apos;", "'").replace("&#39;", "'").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_their_names() {
        let xml = "<?xml version=\"1.0\"?><E><Code>A</Code><Key>a&amp;lt;</Key><Key>b</Key><Code>";
        assert_eq!(element(xml, "Code"), Some("A".to_owned()));
        assert_eq!(elements(xml, "Key").collect::<Vec<_>>(), ["a&lt;", "b"]);
        assert_eq!(element(xml, "Region"), None);
    }
}

//! Writes the man pages into a directory: one for each command, made from the description of its options and from its
//! text in `pages/`, and one for each topic (the stores, the recipes).
//!
//! `packaging/generate.sh` runs it; dlock itself contains the pages that were committed.

mod markup;
mod texts;

use std::path::Path;

use clap::{Arg, Command};
use roff::{Inline, bold, italic, roman};

use markup::Writer;
use texts::Facts;

/// A man page.
struct Page {
    /// The file name, such as `dlock-run.1`.
    file: String,
    /// The content: roff.
    text: String,
}

/// The date of the last change of the texts.
const DATE: &str = "2026-11-25";

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).expect("an argument: the directory to write to");
    std::fs::create_dir_all(&directory)?;
    for page in pages(&dlock::command()) {
        std::fs::write(Path::new(&directory).join(&page.file), &page.text)?;
    }
    Ok(())
}

/// Returns all man pages, that of dlock itself first. `root` is the description of the command line.
fn pages(root: &Command) -> Vec<Page> {
    let commands: Vec<&Command> = root.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    let mut titles: Vec<String> = vec!["dlock(1)".into()];
    titles.extend(commands.iter().map(|command| format!("dlock-{}(1)", command.get_name())));
    titles.extend(texts::TOPICS.iter().map(|topic| format!("{}({})", topic.name, topic.section)));
    let mut pages = vec![overview(root, &commands, &titles)];
    pages.extend(commands.iter().map(|command| of_command(command, root, &titles)));
    for topic in texts::TOPICS {
        let mut writer = begin(root, topic.name, topic.section, topic.what);
        writer.text(&texts::complete(
            &texts::of(&format!("{}.{}", topic.name.trim_start_matches("dlock-"), topic.section)),
            &Facts { command: None, titles: &titles },
        ));
        pages.push(Page { file: format!("{}.{}", topic.name, topic.section), text: writer.finish() });
    }
    pages
}

fn begin(root: &Command, name: &str, section: &str, what: &str) -> Writer {
    let source = format!("dlock {}", root.get_version().unwrap_or_default());
    let manual = match section {
        "5" => "File Formats",
        "7" => "Miscellaneous",
        _ => "User Commands",
    };
    let mut writer = Writer::new([&name.to_uppercase(), section, DATE, &source, manual]);
    writer.section("NAME");
    writer.paragraph(vec![roman(format!("{name} - {what}"))]);
    writer
}

/// The page of dlock itself.
fn overview(root: &Command, commands: &[&Command], titles: &[String]) -> Page {
    let mut writer = begin(root, "dlock", "1", &about(root));
    writer.section("SYNOPSIS");
    let usages: Vec<String> = commands.iter().flat_map(|command| usage(command)).collect();
    writer.lines(usages.iter().map(String::as_str));
    let text = texts::complete(&texts::of("dlock"), &Facts { command: Some(commands[0]), titles });
    let (description, rest) = text.split_once("\n!commands\n").unwrap_or((&text, ""));
    let (names, rest) = rest.split_once("\n!options\n").unwrap_or((rest, ""));
    writer.text(description);
    for command in commands {
        let name = format!("dlock-{}(1)", command.get_name());
        writer.term(vec![bold(name)], vec![roman(about(command))]);
    }
    writer.text(names);
    for argument in commands[0].get_arguments().filter(|argument| is_common(argument)) {
        option(&mut writer, argument);
    }
    writer.text(rest);
    Page { file: "dlock.1".into(), text: writer.finish() }
}

/// The options of every command, which only the page of dlock itself describes.
const COMMON: &[&str] =
    &["backend", "config", "connect_timeout", "quiet", "verbose", "log_format", "help", "version"];

fn is_common(argument: &Arg) -> bool {
    COMMON.contains(&argument.get_id().as_str())
}

/// The page of a command: the examples of its help, its text, with the options after the description, and the other
/// sections of its help.
fn of_command(command: &Command, root: &Command, titles: &[String]) -> Page {
    let name = format!("dlock-{}", command.get_name());
    let mut writer = begin(root, &name, "1", &about(command));
    writer.section("SYNOPSIS");
    writer.lines(usage(command).iter().map(String::as_str));
    let parts = parts(command);
    for part in &parts {
        help(&mut writer, part, |title| title == "EXAMPLES");
    }
    let text = texts::complete(&texts::of(command.get_name()), &Facts { command: Some(parts[0]), titles });
    let mut sections = sections_of(&text).into_iter();
    if let Some(description) = sections.next() {
        writer.text(description);
    }
    for part in &parts {
        let title =
            if parts.len() > 1 { format!("OPTIONS OF {}", part.get_name()) } else { "OPTIONS".into() };
        options(&mut writer, &title, part);
    }
    let is_in_text = |title: &str| text.lines().any(|line| line.strip_prefix("# ") == Some(title));
    for part in parts {
        help(&mut writer, part, |title| title != "EXAMPLES" && !is_in_text(title));
    }
    for section in sections {
        writer.text(section);
        if section.trim().lines().count() == 1 {
            writer.paragraph(vec![roman("None.")]);
        }
    }
    Page { file: format!("{name}.1"), text: writer.finish() }
}

/// A text cut before each of its sections.
fn sections_of(text: &str) -> Vec<&str> {
    let mut starts: Vec<usize> = text.match_indices("\n# ").map(|(at, _)| at + 1).collect();
    if text.starts_with("# ") {
        starts.insert(0, 0);
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

/// Writes the sections of a command's long help with the titles that are `wanted`.
fn help(writer: &mut Writer, command: &Command, wanted: impl Fn(&str) -> bool) {
    let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    for (title, lines) in sections_of_help(&help) {
        let title = title.to_uppercase();
        if !wanted(&title) {
            continue;
        }
        writer.section(&title);
        for block in lines.chunk_by(|_, next| !starts_example(next)) {
            if block.len() > 1 && block[1..].iter().all(|line| line.starts_with("      ")) {
                let explained = block[1..].iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
                writer.term(vec![bold(block[0].trim())], vec![roman(explained)]);
            } else if title == "EXAMPLES" {
                for line in block {
                    writer.term(vec![bold(line.trim())], Vec::new());
                }
            } else if block.iter().any(|line| line.len() > WIDEST) {
                let text = block.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
                writer.paragraph(vec![roman(text)]);
            } else {
                writer.verbatim(block.iter().map(|line| line.strip_prefix("  ").unwrap_or(line)));
            }
        }
    }
}

/// The maximum length of a line of a table in the help. Longer lines are plain text, and are refilled.
const WIDEST: usize = 70;

/// In the help an example is indented by two spaces, and its description below it by more.
fn starts_example(line: &str) -> bool {
    line.starts_with("  ") && !line.starts_with("   ")
}

/// Splits a help text into its sections: `Title:` and the indented lines below it.
fn sections_of_help(help: &str) -> Vec<(&str, Vec<&str>)> {
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in help.lines() {
        match (line.strip_suffix(':').filter(|_| !line.starts_with(' ')), sections.last_mut()) {
            (Some(title), _) => sections.push((title, Vec::new())),
            (None, Some((_, lines))) if !line.trim().is_empty() => lines.push(line),
            _ => {}
        }
    }
    sections
}

/// Returns the short description of a command, with a lower-case first letter.
fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut letters = about.trim_end_matches('.').chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// Returns the usage of a command, one line for each form.
fn usage(command: &Command) -> Vec<String> {
    let usages = parts(command).into_iter().map(|part| part.clone().render_usage().to_string());
    let lines: Vec<String> =
        usages.flat_map(|usage| usage.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let lines = lines.iter().map(|line| line.trim().trim_start_matches("Usage:").trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

/// Returns the commands that take the options: the command itself, or its subcommands, such as `show` of
/// `config`.
fn parts(command: &Command) -> Vec<&Command> {
    let parts: Vec<&Command> = command.get_subcommands().filter(|part| !part.is_hide_set()).collect();
    if parts.is_empty() { vec![command] } else { parts }
}

/// The options by their headings, those without one last.
fn options(writer: &mut Writer, title: &str, command: &Command) {
    let (common, shown): (Vec<&Arg>, Vec<&Arg>) = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .partition(|argument| is_common(argument));
    let mut headings: Vec<Option<&str>> = Vec::new();
    for heading in
        shown.iter().filter(|argument| !argument.is_positional()).map(|argument| argument.get_help_heading())
    {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    headings.sort_by_key(Option::is_none);
    writer.section(&title.to_uppercase());
    for argument in shown.iter().filter(|argument| argument.is_positional()) {
        option(writer, argument);
    }
    for heading in headings {
        writer.part(heading.unwrap_or("Other"));
        let ours = |argument: &&&Arg| !argument.is_positional() && argument.get_help_heading() == heading;
        for argument in shown.iter().filter(ours) {
            option(writer, argument);
        }
    }
    let mut term: Vec<Inline> = Vec::new();
    for argument in common {
        term.extend((!term.is_empty()).then(|| roman(", ")));
        term.extend(names(argument));
    }
    writer.term(term, vec![roman("Options of every command, see "), bold("dlock"), roman("(1).")]);
}

/// The names of an option, separated by commas.
fn names(argument: &Arg) -> Vec<Inline> {
    let mut term: Vec<Inline> = Vec::new();
    let shorts = argument.get_short_and_visible_aliases().unwrap_or_default();
    let longs = argument.get_long_and_visible_aliases().unwrap_or_default();
    let names =
        shorts.iter().map(|letter| format!("-{letter}")).chain(longs.iter().map(|name| format!("--{name}")));
    for name in names {
        if !term.is_empty() {
            term.push(roman(", "));
        }
        term.push(bold(name));
    }
    term
}

fn option(writer: &mut Writer, argument: &Arg) {
    let mut term = names(argument);
    let takes_value = argument.get_num_args().is_some_and(|number| number.takes_values());
    if takes_value {
        let name = italic(argument.get_value_names().unwrap_or_default().join(" "));
        match (term.is_empty(), argument.is_require_equals_set()) {
            (true, _) => term.push(name),
            (false, false) => term.extend([roman(" "), name]),
            // The value may be left out.
            (false, true) => term.extend([roman("[="), name, roman("]")]),
        }
    }
    let help = argument.get_long_help().or_else(|| argument.get_help()).map(ToString::to_string);
    writer.term(term, vec![roman(help.unwrap_or_default().replace('\n', " "))]);
    let possible = argument.get_possible_values();
    let values: Vec<Vec<Inline>> = possible
        .iter()
        .filter(|value| !value.is_hide_set() && takes_value)
        .map(|value| {
            let help = value.get_help().map(|help| roman(format!(": {help}")));
            std::iter::once(bold(value.get_name())).chain(help).collect()
        })
        .collect();
    if !values.is_empty() {
        writer.items(values);
    }
}

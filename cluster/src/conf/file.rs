//! The grammar of ceph.conf.
//!
//! The rules are those of `IniGrammer` (`src/common/ConfUtils.cc`): `[section]` headings and
//! `key = value` lines; `#` and `;` start a comment anywhere outside an escape; a backslash
//! before the end of a line joins it with the next, before any other character it takes that
//! character literally; a value may stand in single or double quotes. Blanks at the ends of keys
//! and values do not count, runs of blanks inside a key are one underscore.
//!
//! Three things are taken here that Ceph refuses: keys before the first heading count as
//! `[global]`, a heading may be indented, and the last line may lack its newline. In keys, a dash
//! equals an underscore, as Ceph's manual has it.

use std::collections::BTreeMap;

/// Larger files are refused: a ceph.conf is a few kilobytes.
pub(super) const MAX_FILE: usize = 16 << 20;

/// A value and the line its key stands on, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: String,
    pub(super) line: usize,
}

/// Sections by name, each with its values by normalized key. A key that is repeated keeps its
/// last value, a section that is repeated is merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct File {
    sections: BTreeMap<String, BTreeMap<String, Entry>>,
}

/// What is wrong, and on which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub(super) line: usize,
    pub(super) what: String,
}

impl File {
    pub(super) fn parse(bytes: &[u8]) -> Result<File, SyntaxError> {
        if bytes.len() > MAX_FILE {
            return Err(SyntaxError {
                line: 1,
                what: format!("file is larger than {MAX_FILE} bytes"),
            });
        }
        let text = std::str::from_utf8(bytes).map_err(|e| SyntaxError {
            line: 1 + newlines(&bytes[..e.valid_up_to()]),
            what: "not valid UTF-8".into(),
        })?;
        let mut file = File::default();
        let mut section = "global".to_string();
        let mut cursor = Cursor { text, line: 1 };
        while !cursor.text.is_empty() {
            let line = cursor.line;
            let tokens = cursor.logical_line();
            match parse_line(&tokens).map_err(|what| SyntaxError { line, what })? {
                Line::Empty => {}
                Line::Heading(name) => {
                    file.sections.entry(name.clone()).or_default();
                    section = name;
                }
                Line::Entry { key, value } => {
                    file.sections
                        .entry(section.clone())
                        .or_default()
                        .insert(key, Entry { value, line });
                }
            }
        }
        Ok(file)
    }

    /// The value of a normalized key in the first of `sections` that has it.
    pub(super) fn get(&self, sections: &[&str], key: &str) -> Option<&Entry> {
        sections
            .iter()
            .find_map(|s| self.sections.get(*s).and_then(|s| s.get(key)))
    }
}

/// A key as it is looked up: blanks trimmed, runs of blanks and single dashes as underscores.
pub(super) fn normalize_key(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for word in key.split_whitespace() {
        if !out.is_empty() {
            out.push('_');
        }
        out.extend(word.chars().map(|c| if c == '-' { '_' } else { c }));
    }
    out
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|b| **b == b'\n').count()
}

/// A character of a logical line: as written, or made literal by a backslash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Plain(char),
    Literal(char),
}

impl Token {
    fn char(self) -> char {
        match self {
            Token::Plain(c) | Token::Literal(c) => c,
        }
    }

    fn is_blank(self) -> bool {
        matches!(self, Token::Plain(c) if c.is_ascii_whitespace())
    }
}

enum Line {
    Empty,
    Heading(String),
    Entry { key: String, value: String },
}

struct Cursor<'a> {
    text: &'a str,
    line: usize,
}

impl Cursor<'_> {
    /// The characters up to a line end that no backslash hides, less the comment.
    fn logical_line(&mut self) -> Vec<Token> {
        let mut out = Vec::new();
        let mut comment = false;
        let mut chars = self.text.char_indices().peekable();
        while let Some((_, c)) = chars.next() {
            match c {
                '\n' => {
                    self.line += 1;
                    break;
                }
                _ if comment => {}
                '#' | ';' => comment = true,
                '\\' => match chars.peek().copied() {
                    Some((_, '\n')) => {
                        chars.next();
                        self.line += 1;
                    }
                    // A carriage return belongs to the line end.
                    Some((at, '\r')) if self.text[at..].starts_with("\r\n") => {
                        chars.next();
                        chars.next();
                        self.line += 1;
                    }
                    Some((_, c)) => {
                        chars.next();
                        out.push(Token::Literal(c));
                    }
                    None => out.push(Token::Plain('\\')),
                },
                c => out.push(Token::Plain(c)),
            }
        }
        let rest = chars.next().map_or(self.text.len(), |(at, _)| at);
        self.text = &self.text[rest..];
        out
    }
}

fn trim(mut tokens: &[Token]) -> &[Token] {
    while let [first, rest @ ..] = tokens
        && first.is_blank()
    {
        tokens = rest;
    }
    while let [rest @ .., last] = tokens
        && last.is_blank()
    {
        tokens = rest;
    }
    tokens
}

fn string(tokens: &[Token]) -> String {
    tokens.iter().map(|t| t.char()).collect()
}

fn parse_line(tokens: &[Token]) -> Result<Line, String> {
    let tokens = trim(tokens);
    let Some(first) = tokens.first() else {
        return Ok(Line::Empty);
    };
    if *first == Token::Plain('[') {
        return match tokens.iter().position(|t| *t == Token::Plain(']')) {
            Some(end) if end + 1 == tokens.len() => {
                let name = string(&tokens[1..end]).trim().to_string();
                if name.is_empty() {
                    return Err("section name is empty".into());
                }
                Ok(Line::Heading(name))
            }
            Some(_) => Err("unexpected text after the section's ]".into()),
            None => Err("section heading lacks its ]".into()),
        };
    }
    let Some(equals) = tokens.iter().position(|t| *t == Token::Plain('=')) else {
        return Err("expected \"key = value\" or \"[section]\"".into());
    };
    let key = normalize_key(&string(&tokens[..equals]));
    if key.is_empty() {
        return Err("expected a key before the =".into());
    }
    let value = trim(&tokens[equals + 1..]);
    Ok(Line::Entry {
        key,
        value: parse_value(value)?,
    })
}

fn parse_value(tokens: &[Token]) -> Result<String, String> {
    let quote = match tokens.first() {
        Some(Token::Plain(c @ ('"' | '\''))) => Token::Plain(*c),
        _ => return Ok(string(tokens).trim().to_string()),
    };
    match tokens[1..].iter().position(|t| *t == quote) {
        Some(end) if end + 2 == tokens.len() => Ok(string(&tokens[1..=end]).trim().to_string()),
        Some(_) => Err("unexpected text after the closing quote".into()),
        None => Err(
            "quote is not closed (inside quotes, # and ; and line ends need a backslash)".into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str, section: &str, key: &str) -> Option<String> {
        let file = File::parse(text.as_bytes()).unwrap();
        file.get(&[section], key).map(|e| e.value.clone())
    }

    fn error(text: &str) -> (usize, String) {
        let e = File::parse(text.as_bytes()).unwrap_err();
        (e.line, e.what)
    }

    #[test]
    fn blanks_underscores_and_dashes_in_keys_are_equal() {
        for key in ["mon host", "mon_host", "mon-host", "  mon \t host  "] {
            let text = format!("[global]\n{key} = 10.0.0.1\n");
            assert_eq!(value(&text, "global", "mon_host").unwrap(), "10.0.0.1");
        }
    }

    #[test]
    fn comments_end_a_value_unless_escaped() {
        let text = "; one\n# two\n[global] # three\na = b ; four\nc = d\\;e\\#f # five\n  # six\n";
        assert_eq!(value(text, "global", "a").unwrap(), "b");
        assert_eq!(value(text, "global", "c").unwrap(), "d;e#f");
    }

    #[test]
    fn a_backslash_joins_lines_and_escapes() {
        let text = "[global]\nlog file = the \"scare quotes\"\npid file = a \\\npid file\n\
                    [mon]\nkeyring = \"nested \\\"quotes\\\"\"\nother = \"backslash\\\\\"\n\
                    [apple \\]\\[]\nlog file = floppy disk\n";
        let get = |s, k| value(text, s, k).unwrap();
        assert_eq!(get("global", "log_file"), "the \"scare quotes\"");
        assert_eq!(get("global", "pid_file"), "a pid file");
        assert_eq!(get("mon", "keyring"), "nested \"quotes\"");
        assert_eq!(get("mon", "other"), "backslash\\");
        assert_eq!(get("apple ][", "log_file"), "floppy disk");
    }

    #[test]
    fn the_last_of_equal_keys_wins_across_repeated_sections() {
        let text = "[global]\na = 1\nb = 1\n[mon]\na = 9\n[global]\na = 2\na = 3\n";
        assert_eq!(value(text, "global", "a").unwrap(), "3");
        assert_eq!(value(text, "global", "b").unwrap(), "1");
        assert_eq!(value(text, "mon", "a").unwrap(), "9");
    }

    #[test]
    fn sections_are_searched_in_order() {
        let text = "[client]\na = c\n[global]\na = g\nb = g\n[client.x]\n";
        let file = File::parse(text.as_bytes()).unwrap();
        let order = ["client.x", "client", "global"];
        assert_eq!(file.get(&order, "a").unwrap().value, "c");
        assert_eq!(file.get(&order, "b").unwrap().value, "g");
        assert_eq!(file.get(&order, "b").unwrap().line, 5);
        assert_eq!(file.get(&order, "c"), None);
    }

    #[test]
    fn files_that_ceph_refuses_for_a_trifle_are_read() {
        let text = "fsid = 1\r\n  [client]\r\nkey = a\\\r\nb\r\nempty =\nquoted = ''";
        assert_eq!(value(text, "global", "fsid").unwrap(), "1");
        assert_eq!(value(text, "client", "key").unwrap(), "ab");
        assert_eq!(value(text, "client", "empty").unwrap(), "");
        assert_eq!(value(text, "client", "quoted").unwrap(), "");
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(error("[global]\n\nmon_host\n").0, 3);
        assert_eq!(error("[global]\na = \\\n1\nb = \"x\n").0, 4);
        assert_eq!(error("[global]\n= x\n").0, 2);
        assert_eq!(error("[glo\n").0, 1);
        assert_eq!(error("[global] x\n").0, 1);
        assert_eq!(error("a = 'x' y\n").0, 1);
        assert!(error("a = \"x;y\"\n").1.contains("backslash"));
        let e = File::parse(b"[global]\na = \xff\n").unwrap_err();
        assert_eq!((e.line, e.what.as_str()), (2, "not valid UTF-8"));
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(bytes: Vec<u8>, text in "[\\[\\]=\"'#;\\\\ \n\ra-c]{0,60}") {
            let _ = File::parse(&bytes);
            let _ = File::parse(text.as_bytes());
        }

        #[test]
        fn an_escaped_value_is_read_back(value in "[ -~]{0,30}") {
            let escaped: String = value.trim().chars().flat_map(|c| ['\\', c]).collect();
            let text = format!("[client]\nkey = {escaped}\n");
            let file = File::parse(text.as_bytes()).unwrap();
            prop_assert_eq!(&file.get(&["client"], "key").unwrap().value, value.trim());
        }
    }
}

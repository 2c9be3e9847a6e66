//! Keyring files (`src/auth/KeyRing.cc`), in the dialect of Ceph's configuration files
//! (`IniGrammer`, `src/common/ConfUtils.cc`):
//!
//! ```text
//! [client.admin]
//!     key = BASE64
//!     caps mon = "allow *"    ; until the end of the line
//! ```

use std::collections::BTreeMap;
use std::str::FromStr;

use zeroize::Zeroizing;

use super::{AuthName, CryptoKey, KeyError};

/// Users, their keys and what they may do.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    entries: BTreeMap<AuthName, Entry>,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    key: Option<CryptoKey>,
    caps: BTreeMap<String, String>,
}

/// What is wrong with a keyring, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {problem}")]
pub struct KeyringError {
    pub file: String,
    pub line: usize,
    pub problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("not UTF-8")]
    NotUtf8,
    #[error("expected 'name = value' or '[TYPE.ID]'")]
    NotALine,
    #[error("'[' without ']'")]
    OpenHeading,
    #[error("a quote is not closed")]
    OpenQuote,
    #[error("text after the closing quote or bracket")]
    TextAfter,
    #[error("a setting before the first [TYPE.ID]")]
    NoSection,
    #[error(transparent)]
    Name(#[from] super::name::NameError),
    #[error("unknown setting '{0}': keyrings have key and 'caps SERVICE'")]
    UnknownSetting(String),
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Keyring {
    /// `file` is only named in errors.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Keyring, KeyringError> {
        let error = |line, problem| KeyringError {
            file: file.to_owned(),
            line,
            problem,
        };
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n');
            error(line.count() + 1, Problem::NotUtf8)
        })?;
        let mut ring = Keyring::default();
        let mut section = Section::Missing;
        for (number, line) in logical_lines(text) {
            (|| match parse_line(&line)? {
                Line::Empty => Ok(()),
                Line::Heading(name) => {
                    section = Section::open(&name)?;
                    if let Section::Entity(name) = &section {
                        ring.entries.entry(name.clone()).or_default();
                    }
                    Ok(())
                }
                Line::Setting(name, value) => match &section {
                    Section::Missing => Err(Problem::NoSection),
                    Section::Ignored => Ok(()),
                    Section::Entity(entity) => ring
                        .entries
                        .entry(entity.clone())
                        .or_default()
                        .set(&name, &value),
                },
            })()
            .map_err(|problem| error(number, problem))?;
        }
        Ok(ring)
    }

    pub fn get(&self, name: &AuthName) -> Option<&CryptoKey> {
        self.entries.get(name)?.key.as_ref()
    }

    /// Capabilities of a user, by service. Only monitors read them from a keyring.
    pub fn caps(&self, name: &AuthName) -> impl Iterator<Item = (&str, &str)> {
        self.entries
            .get(name)
            .into_iter()
            .flat_map(|e| e.caps.iter().map(|(k, v)| (k.as_str(), v.as_str())))
    }

    pub fn names(&self) -> impl Iterator<Item = &AuthName> {
        self.entries.keys()
    }

    pub fn insert(&mut self, name: AuthName, key: CryptoKey, caps: &[(&str, &str)]) {
        let caps = caps
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let key = Some(key);
        self.entries.insert(name, Entry { key, caps });
    }

    pub fn remove(&mut self, name: &AuthName) {
        self.entries.remove(name);
    }

    /// The file's text, as `ceph-authtool` writes it.
    pub fn to_text(&self) -> Zeroizing<String> {
        // A keyring has few lines, but growing would leave copies of its keys behind.
        let mut out = Zeroizing::new(String::with_capacity(
            self.entries
                .values()
                .flat_map(|e| &e.caps)
                .map(|(k, v)| 16 + k.len() + 2 * v.len())
                .sum::<usize>()
                + self.entries.keys().map(|n| 256 + n.id.len()).sum::<usize>(),
        ));
        for (name, entry) in &self.entries {
            out.push_str(&format!("[{name}]\n"));
            if let Some(key) = &entry.key {
                out.push_str("\tkey = ");
                out.push_str(&key.to_base64());
                out.push('\n');
            }
            for (service, caps) in &entry.caps {
                let quoted = caps.replace('\\', "\\\\").replace('"', "\\\"");
                out.push_str(&format!("\tcaps {service} = \"{quoted}\"\n"));
            }
        }
        out
    }
}

impl Entry {
    fn set(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        match name.split_once(' ') {
            None if name == "key" => {
                self.key = Some(CryptoKey::from_base64(value)?);
                Ok(())
            }
            // A relic of user numbers.
            None if name == "auid" => Ok(()),
            // `ceph auth get` shows it while a new key waits for its first use; the old one works.
            Some(("pending", "key")) => Ok(()),
            Some(("caps", service)) => {
                self.caps.insert(service.to_owned(), value.to_owned());
                Ok(())
            }
            _ => Err(Problem::UnknownSetting(name.to_owned())),
        }
    }
}

enum Section {
    Missing,
    /// `[global]` may share the file.
    Ignored,
    Entity(AuthName),
}

impl Section {
    fn open(heading: &str) -> Result<Section, Problem> {
        Ok(match heading {
            "global" => Section::Ignored,
            name => Section::Entity(AuthName::from_str(name)?),
        })
    }
}

enum Line {
    Empty,
    Heading(String),
    Setting(String, Zeroizing<String>),
}

/// Lines with the number of their first physical one; a backslash at the end joins the next, except
/// to a comment.
fn logical_lines(text: &str) -> impl Iterator<Item = (usize, Zeroizing<String>)> {
    let mut lines = text.lines().enumerate();
    std::iter::from_fn(move || {
        let (number, first) = lines.next()?;
        let mut joined = Zeroizing::new(first.to_owned());
        let comment = is_comment(first.trim_start());
        while !comment && joined.ends_with('\\') && !joined.ends_with("\\\\") {
            joined.pop();
            let Some((_, next)) = lines.next() else { break };
            joined.push_str(next);
        }
        Some((number + 1, joined))
    })
}

fn parse_line(line: &str) -> Result<Line, Problem> {
    let line = line.trim();
    if line.is_empty() || is_comment(line) {
        return Ok(Line::Empty);
    }
    if let Some(rest) = line.strip_prefix('[') {
        let (name, rest) = rest.split_once(']').ok_or(Problem::OpenHeading)?;
        nothing_more(rest)?;
        return Ok(Line::Heading(name.trim().to_owned()));
    }
    let (name, value) = line.split_once('=').ok_or(Problem::NotALine)?;
    // Blanks and underscores in names are alike, and any number of blanks is one.
    let name = name.replace('_', " ");
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    if name.is_empty() || name.contains(['#', ';', '[']) {
        return Err(Problem::NotALine);
    }
    Ok(Line::Setting(name, parse_value(value.trim())?))
}

/// A value: quoted, or up to a comment. A backslash takes the next character as it is.
fn parse_value(text: &str) -> Result<Zeroizing<String>, Problem> {
    let mut out = Zeroizing::new(String::with_capacity(text.len()));
    let mut chars = text.chars();
    let quote = match text.chars().next() {
        Some(q @ ('"' | '\'')) => {
            chars.next();
            Some(q)
        }
        _ => None,
    };
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c if Some(c) == quote => {
                nothing_more(chars.as_str())?;
                return Ok(out);
            }
            '#' | ';' if quote.is_none() => break,
            c => out.push(c),
        }
    }
    if quote.is_some() {
        return Err(Problem::OpenQuote);
    }
    let len = out.trim_end().len();
    out.truncate(len);
    Ok(out)
}

fn nothing_more(rest: &str) -> Result<(), Problem> {
    let rest = rest.trim_start();
    if rest.is_empty() || is_comment(rest) {
        Ok(())
    } else {
        Err(Problem::TextAfter)
    }
}

fn is_comment(text: &str) -> bool {
    text.starts_with(['#', ';'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &str = "AQCNYw1rFoQxDRAAgDD4Xv747lqO4Yw2huTi+g==";
    const KEY2: &str = "AgAlZA1r3XjfCyAARaNVu91KJhElxayTStsKMzHEcZ0gRs/pFxxNkX0DZLA=";

    fn error(text: &str) -> String {
        Keyring::parse("/etc/k", text.as_bytes())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_keyring_as_ceph_writes_it() {
        let text = format!(
            "[client.admin]\n\tkey = {KEY}\n\tcaps mds = \"allow *\"\n\tcaps mon = \"allow *\"\n[client.vm]\n\tkey = {KEY2}\n"
        );
        let ring = Keyring::parse("k", text.as_bytes()).unwrap();
        assert_eq!(
            *ring.get(&AuthName::client("admin")).unwrap().to_base64(),
            KEY
        );
        assert_eq!(
            *ring.get(&AuthName::client("vm")).unwrap().to_base64(),
            KEY2
        );
        assert!(ring.get(&AuthName::client("other")).is_none());
        let caps: Vec<_> = ring.caps(&AuthName::client("admin")).collect();
        assert_eq!(caps, [("mds", "allow *"), ("mon", "allow *")]);
        assert_eq!(*ring.to_text(), text);
    }

    #[test]
    fn quirks_of_the_dialect() {
        let text = format!(
            "; comment \\\n# another\n\n[global]\n  fsid = x\n[ client.a ] # why\r\nkey={KEY} ; trailing\n\
             auid = 18446744073709551615\npending key = whatever\n\
             caps_osd = 'allow rwx pool=\\'a b\\'' # c\n  caps   mon \t= allow r, \\\n allow w   \n\
             [client.b]\n[client.a]\ncaps mgr = \"x ; y\"\n"
        );
        let ring = Keyring::parse("k", text.as_bytes()).unwrap();
        let a = AuthName::client("a");
        assert_eq!(*ring.get(&a).unwrap().to_base64(), KEY);
        let caps: Vec<_> = ring.caps(&a).collect();
        assert_eq!(
            caps,
            [
                ("mgr", "x ; y"),
                ("mon", "allow r,  allow w"),
                ("osd", "allow rwx pool='a b'")
            ]
        );
        assert!(ring.get(&AuthName::client("b")).is_none());
    }

    #[test]
    fn errors_name_file_and_line() {
        assert_eq!(
            error("\n\nkey = x\n"),
            "/etc/k:3: a setting before the first [TYPE.ID]"
        );
        assert_eq!(
            error("[admin]\n"),
            "/etc/k:1: 'admin' is no entity name: write TYPE.ID, as in client.admin"
        );
        assert_eq!(
            error("[client.a]\n key = ?\n"),
            "/etc/k:2: the key is not base64"
        );
        assert_eq!(error("[client.a\n"), "/etc/k:1: '[' without ']'");
        assert_eq!(
            error("[client.a]\nkey\n"),
            "/etc/k:2: expected 'name = value' or '[TYPE.ID]'"
        );
        assert_eq!(
            error("[client.a]\ncaps mon = \"x\n"),
            "/etc/k:2: a quote is not closed"
        );
        assert_eq!(
            error("[client.a]\ncaps mon = \"x\" y\n"),
            "/etc/k:2: text after the closing quote or bracket"
        );
        assert_eq!(
            error("[client.a]\ncolour = red\n"),
            "/etc/k:2: unknown setting 'colour': keyrings have key and 'caps SERVICE'"
        );
        let e = Keyring::parse("k", b"[client.a]\n\xff").unwrap_err();
        assert_eq!(e.to_string(), "k:2: not UTF-8");
    }

    #[test]
    fn debug_output_shows_no_key() {
        let text = format!("[client.a]\nkey = {KEY}\n");
        let ring = Keyring::parse("k", text.as_bytes()).unwrap();
        assert!(!format!("{ring:?}").contains("AQCN"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(caps in prop::collection::btree_map("[a-z]{1,4}", "[ -~]{0,20}", 0..4), id in "[a-z0-9.-]{1,8}") {
            let mut ring = Keyring::default();
            let name = AuthName::client(&id);
            let caps: Vec<(&str, &str)> = caps.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            ring.insert(name.clone(), CryptoKey::from_base64(KEY2).unwrap(), &caps);
            let back = Keyring::parse("k", ring.to_text().as_bytes()).unwrap();
            prop_assert_eq!(&*back.to_text(), &*ring.to_text());
            prop_assert_eq!(back.caps(&name).collect::<Vec<_>>(), caps);
        }

        #[test]
        fn hostile_text_never_panics(bytes: Vec<u8>, text in "[\\[\\]a.=\\\\\"'#; \n]{0,60}") {
            let _ = Keyring::parse("k", &bytes);
            let _ = Keyring::parse("k", text.as_bytes());
        }
    }
}

//! Tests that are known to fail, and why.

use anyhow::{Context, Result, ensure};

use super::matches;

/// A list of known failures: per line a suite, a pattern of tests in it, and the reason.
#[derive(Debug, Default)]
pub struct Expectations(Vec<Known>);

#[derive(Debug)]
struct Known {
    suite: String,
    test: String,
    why: String,
}

impl Expectations {
    pub fn parse(text: &str) -> Result<Expectations> {
        let mut list = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.splitn(3, char::is_whitespace);
            let mut next = || words.next().map(|word| word.trim().to_owned());
            let known = (|| {
                Some(Known {
                    suite: next()?,
                    test: next()?,
                    why: next()?,
                })
            })();
            let known = known.with_context(|| format!("line {}: not SUITE TEST REASON", i + 1))?;
            ensure!(!known.why.is_empty(), "line {}: no reason", i + 1);
            list.push(known);
        }
        Ok(Expectations(list))
    }

    /// Why this test fails, if that is known.
    pub fn reason(&self, suite: &str, test: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|known| matches(&known.suite, suite) && matches(&known.test, test))
            .map(|known| known.why.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_found_by_pattern() {
        let text = "# comment\n\nrados_api_* *EC* no erasure coding here\nlibrbd A.b why not\n";
        let list = Expectations::parse(text).unwrap();
        let why = Some("no erasure coding here");
        assert_eq!(list.reason("rados_api_io", "LibRadosIoEC.Write"), why);
        assert_eq!(list.reason("librbd", "A.b"), Some("why not"));
        assert_eq!(list.reason("librbd", "A.c"), None);
        assert!(Expectations::parse("librbd A.b").is_err());
    }
}

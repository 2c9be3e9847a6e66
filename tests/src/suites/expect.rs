//! Tests that are known to fail, and why.

use anyhow::{Context, Result, ensure};

use super::{Outcome, Verdict, matches};

/// A list of known failures: per line a suite, a pattern of tests in it, and the reason. Tests that
/// also pass have a reason that begins with `sometimes: `.
#[derive(Debug, Default)]
pub struct Expectations(Vec<Known>);

const SOMETIMES: &str = "sometimes: ";

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
        let known = self.0.iter().find(|known| known.names(suite, test))?;
        Some(known.why.as_str())
    }

    /// The entries of which some tests passed, and none failed, as the list has them.
    pub fn outdated<'a>(
        &self,
        outcomes: impl IntoIterator<Item = (&'a str, &'a Outcome)>,
    ) -> Vec<String> {
        let mut passed = vec![false; self.0.len()];
        let mut failed = passed.clone();
        for (suite, o) in outcomes {
            for (i, known) in self.0.iter().enumerate() {
                if known.names(suite, &o.test) {
                    passed[i] |= o.verdict == Verdict::Passed;
                    failed[i] |= o.verdict.is_bad();
                }
            }
        }
        let entries = self.0.iter().zip(passed.iter().zip(&failed));
        entries
            .filter(|(known, _)| !known.why.starts_with(SOMETIMES))
            .filter(|(_, (passed, failed))| **passed && !**failed)
            .map(|(known, _)| format!("{} {}", known.suite, known.test))
            .collect()
    }
}

impl Known {
    fn names(&self, suite: &str, test: &str) -> bool {
        matches(&self.suite, suite) && matches(&self.test, test)
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

    #[test]
    fn an_entry_that_names_no_failure_is_outdated() {
        let text = "a X.* one\na Y.* two\n* Z.* three\nb W.* four\na V sometimes: five\n";
        let list = Expectations::parse(text).unwrap();
        let outcome = |test: &str, verdict| Outcome {
            test: test.to_owned(),
            verdict,
        };
        let outcomes = [
            outcome("X.1", Verdict::Passed),
            outcome("X.2", Verdict::Hung),
            outcome("Y.1", Verdict::Passed),
            outcome("Z.1", Verdict::Skipped),
            outcome("V", Verdict::Passed),
        ];
        let outdated = list.outdated(outcomes.iter().map(|o| ("a", o)));
        assert_eq!(outdated, ["a Y.*"]);
    }
}

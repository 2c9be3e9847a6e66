//! Reading capability strings: a cursor, moved only by what matches.

/// Characters of a word without quotes.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-')
}

fn is_network(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, '/' | '.' | ':' | '[' | ']')
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) rest: &'a str,
}

impl<'a> Text<'a> {
    pub(super) fn new(text: &'a str) -> Text<'a> {
        Text { rest: text }
    }

    /// Takes what `f` reads, or nothing if it fails.
    pub(super) fn attempt<T>(&mut self, f: impl FnOnce(&mut Text<'a>) -> Option<T>) -> Option<T> {
        let mut probe = *self;
        let got = f(&mut probe)?;
        *self = probe;
        Some(got)
    }

    pub(super) fn literal(&mut self, word: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    pub(super) fn skip(&mut self, is: impl Fn(char) -> bool) {
        self.rest = self.rest.trim_start_matches(is);
    }

    /// At least one blank.
    pub(super) fn blanks(&mut self) -> Option<()> {
        let rest = self
            .rest
            .trim_start_matches(|c: char| c.is_ascii_whitespace());
        let some = rest.len() < self.rest.len();
        self.rest = rest;
        some.then_some(())
    }

    /// `=` or blanks, between a word and its value.
    pub(super) fn equals_or_blanks(&mut self) -> Option<()> {
        match self.literal("=") {
            Some(()) => Some(()),
            None => self.blanks(),
        }
    }

    fn run(&mut self, is: impl Fn(char) -> bool) -> Option<&'a str> {
        let rest = self.rest.trim_start_matches(is);
        let word = &self.rest[..self.rest.len() - rest.len()];
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    /// A quoted string or a word, never empty.
    pub(super) fn string(&mut self) -> Option<&'a str> {
        self.attempt(|t| t.quoted().filter(|s| !s.is_empty()))
            .or_else(|| self.run(is_word))
    }

    /// A quoted string, which may be empty, or a word.
    pub(super) fn maybe_empty(&mut self) -> Option<&'a str> {
        self.attempt(Text::quoted).or_else(|| self.run(is_word))
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let quote = self
            .rest
            .chars()
            .next()
            .filter(|c| matches!(c, '"' | '\''))?;
        let (inner, rest) = self.rest[1..].split_once(quote)?;
        self.rest = rest;
        Some(inner)
    }

    /// ` network 10.0.0.0/8`, if it is there.
    pub(super) fn network(&mut self) -> Option<&'a str> {
        self.attempt(|t| {
            t.blanks()?;
            t.literal("network")?;
            t.blanks()?;
            t.run(is_network)
        })
    }

    /// `*` or `all`.
    pub(super) fn wildcard(&mut self) -> Option<()> {
        match self.literal("*") {
            Some(()) => Some(()),
            None => self.literal("all"),
        }
    }
}

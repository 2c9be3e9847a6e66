//! Metavariables: `$cluster`, `$type`, `$id`, `$name`, `$host`, `$pid`, `$home` and the values of
//! other options (`md_config_t::_expand_meta`, `src/common/config.cc`).

/// Deeper nesting of options within options is left as it stands; so are options that refer to
/// themselves.
const MAX_DEPTH: usize = 8;
/// Options within options may multiply; what grows beyond this is left as it stands.
const MAX_LEN: usize = 1 << 20;

/// `text` with every `$name` and `${name}` replaced that `lookup` knows.
pub(super) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<Meta>) -> String {
    expand_within(text, lookup, &mut Vec::new())
}

/// What a name stands for.
pub(super) enum Meta {
    /// This text.
    Text(String),
    /// The value of an option, which may hold further names.
    Nested(String),
}

fn expand_within(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<Meta>,
    stack: &mut Vec<String>,
) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let (name, end) = variable(&rest[at..]);
        let source = &rest[at..at + end];
        rest = &rest[at + end..];
        match lookup(name) {
            Some(Meta::Text(text)) => out.push_str(&text),
            Some(Meta::Nested(text))
                if stack.len() < MAX_DEPTH
                    && out.len() < MAX_LEN
                    && !stack.iter().any(|n| n == name) =>
            {
                stack.push(name.to_string());
                out.push_str(&expand_within(&text, lookup, stack));
                stack.pop();
            }
            _ => out.push_str(source),
        }
    }
    out.push_str(rest);
    out
}

/// The name after the `$` that `s` starts with, and the length of the whole reference. The name
/// is empty when none follows.
fn variable(s: &str) -> (&str, usize) {
    let letters = |s: &str| {
        s.find(|c: char| !c.is_ascii_lowercase() && c != '_')
            .unwrap_or(s.len())
    };
    match s[1..].strip_prefix('{') {
        Some(inner) => {
            let n = letters(inner);
            match inner[n..].starts_with('}') {
                true => (&inner[..n], n + 3),
                false => ("", 1),
            }
        }
        None => {
            let n = letters(&s[1..]);
            (&s[1..=n], n + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lookup(name: &str) -> Option<Meta> {
        Some(match name {
            "id" => Meta::Text("admin".into()),
            "name" => Meta::Text("client.$id".into()),
            "outer" => Meta::Nested("<${id} $inner>".into()),
            "inner" => Meta::Nested("$outer".into()),
            "bomb" => Meta::Nested("$bomb_a$bomb_a$bomb_a$bomb_a$bomb_a$bomb_a".into()),
            _ => return None,
        })
    }

    #[test]
    fn names_are_replaced_in_both_forms() {
        let e = |s: &str| expand(s, &lookup);
        assert_eq!(e("/etc/$id.keyring"), "/etc/admin.keyring");
        assert_eq!(e("${id}x"), "adminx");
        assert_eq!(e("$idx $ID $ ${id $$id"), "$idx $ID $ ${id $admin");
        // Only options nest.
        assert_eq!(e("$name"), "client.$id");
    }

    #[test]
    fn options_nest_until_they_meet_themselves() {
        assert_eq!(expand("$outer", &lookup), "<admin $outer>");
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(s in "\\PC{0,60}", t in "[${}a-o]{0,40}") {
            let _ = expand(&s, &lookup);
            let _ = expand(&t, &lookup);
        }
    }
}

//! Regular expressions of monitor caps (POSIX extended, matched against the whole value).
//!
//! They come from users' capability strings and meet values from the network. A pattern becomes a
//! program of bounded size that walks all its alternatives side by side: time is that size times
//! the length of the value, whatever the pattern.

/// Most instructions; a pattern that needs more is refused.
const MOST: usize = 4096;
/// Deepest nesting of groups.
const DEPTH: u32 = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Char(char),
    Any,
    Start,
    End,
    Class {
        not: bool,
        ranges: Vec<(char, char)>,
    },
    Group(Vec<Vec<Node>>),
    Repeat {
        node: Box<Node>,
        least: u32,
        most: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Takes one character that [`Node`] admits.
    Take(Node),
    Start,
    End,
    /// Goes on at both.
    Split(usize, usize),
    Jump(usize),
    Done,
}

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Step>);

impl Pattern {
    pub(super) fn parse(text: &str) -> Option<Pattern> {
        let mut parser = Parser {
            rest: text.chars().collect(),
            at: 0,
        };
        let alternatives = parser.alternatives(0)?;
        if parser.at < parser.rest.len() {
            return None;
        }
        let mut program = Program(Vec::new());
        program.alternatives(&alternatives)?;
        program.push(Step::Done)?;
        Some(Pattern(program.0))
    }

    pub(super) fn matches(&self, value: &str) -> bool {
        let mut here = vec![false; self.0.len()];
        self.reach(0, &mut here, true, value.is_empty());
        let mut chars = value.chars().peekable();
        while let Some(c) = chars.next() {
            let last = chars.peek().is_none();
            let mut next = vec![false; self.0.len()];
            for (at, step) in self.0.iter().enumerate() {
                if here[at] && matches!(step, Step::Take(node) if node.admits(c)) {
                    self.reach(at + 1, &mut next, false, last);
                }
            }
            here = next;
        }
        here.last().copied().unwrap_or(false)
    }

    /// Marks `from` and what follows from it without taking a character.
    fn reach(&self, from: usize, marks: &mut [bool], first: bool, last: bool) {
        let mut todo = vec![from];
        while let Some(at) = todo.pop() {
            if std::mem::replace(&mut marks[at], true) {
                continue;
            }
            match self.0[at] {
                Step::Split(a, b) => todo.extend([a, b]),
                Step::Jump(to) => todo.push(to),
                Step::Start if first => todo.push(at + 1),
                Step::End if last => todo.push(at + 1),
                _ => {}
            }
        }
    }
}

impl Node {
    fn admits(&self, c: char) -> bool {
        match self {
            Node::Char(own) => *own == c,
            Node::Class { not, ranges } => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *not
            }
            _ => true,
        }
    }
}

struct Program(Vec<Step>);

impl Program {
    fn push(&mut self, step: Step) -> Option<usize> {
        self.0.push(step);
        (self.0.len() <= MOST).then_some(self.0.len() - 1)
    }

    fn alternatives(&mut self, all: &[Vec<Node>]) -> Option<()> {
        let Some((last, before)) = all.split_last() else {
            return Some(());
        };
        let mut exits = Vec::new();
        for nodes in before {
            let split = self.push(Step::Jump(0))?;
            self.sequence(nodes)?;
            exits.push(self.push(Step::Jump(0))?);
            self.0[split] = Step::Split(split + 1, self.0.len());
        }
        self.sequence(last)?;
        for exit in exits {
            self.0[exit] = Step::Jump(self.0.len());
        }
        Some(())
    }

    fn sequence(&mut self, nodes: &[Node]) -> Option<()> {
        nodes.iter().try_for_each(|node| self.node(node))
    }

    fn node(&mut self, node: &Node) -> Option<()> {
        match node {
            Node::Start => self.push(Step::Start).map(drop),
            Node::End => self.push(Step::End).map(drop),
            Node::Group(all) => self.alternatives(all),
            Node::Repeat { node, least, most } => {
                for _ in 0..*least {
                    self.counted(node)?;
                }
                if *most == u32::MAX {
                    let split = self.push(Step::Jump(0))?;
                    self.node(node)?;
                    self.push(Step::Jump(split))?;
                    self.0[split] = Step::Split(split + 1, self.0.len());
                    return Some(());
                }
                for _ in *least..*most {
                    let split = self.push(Step::Jump(0))?;
                    self.node(node)?;
                    self.0[split] = Step::Split(split + 1, self.0.len());
                }
                Some(())
            }
            node => self.push(Step::Take(node.clone())).map(drop),
        }
    }

    /// One of many rounds; an empty group would make no progress towards [`MOST`].
    fn counted(&mut self, node: &Node) -> Option<()> {
        let before = self.0.len();
        self.node(node)?;
        match self.0.len() == before {
            true => self.push(Step::Jump(before + 1)).map(drop),
            false => Some(()),
        }
    }
}

struct Parser {
    rest: Vec<char>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn alternatives(&mut self, depth: u32) -> Option<Vec<Vec<Node>>> {
        if depth > DEPTH {
            return None;
        }
        let mut all = vec![self.sequence(depth)?];
        while self.peek() == Some('|') {
            self.at += 1;
            all.push(self.sequence(depth)?);
        }
        Some(all)
    }

    fn sequence(&mut self, depth: u32) -> Option<Vec<Node>> {
        let mut nodes = Vec::new();
        while let Some(c) = self.peek().filter(|c| !matches!(c, '|' | ')')) {
            self.at += 1;
            let node = match c {
                '.' => Node::Any,
                '^' => Node::Start,
                '$' => Node::End,
                '[' => self.class()?,
                '(' => {
                    let inner = self.alternatives(depth + 1)?;
                    (self.next()? == ')').then_some(Node::Group(inner))?
                }
                '\\' => Node::Char(self.next()?),
                '*' | '+' | '?' | '{' => return None,
                c => Node::Char(c),
            };
            nodes.push(self.repeated(node)?);
        }
        Some(nodes)
    }

    fn repeated(&mut self, node: Node) -> Option<Node> {
        let (least, most) = match self.peek() {
            Some('*') => (0, u32::MAX),
            Some('+') => (1, u32::MAX),
            Some('?') => (0, 1),
            Some('{') => {
                self.at += 1;
                let bounds: String =
                    std::iter::from_fn(|| self.next().filter(|c| *c != '}')).collect();
                self.at -= 1;
                if self.peek() != Some('}') {
                    return None;
                }
                match bounds.split_once(',') {
                    None => (bounds.parse().ok()?, bounds.parse().ok()?),
                    Some((least, "")) => (least.parse().ok()?, u32::MAX),
                    Some((least, most)) => (least.parse().ok()?, most.parse().ok()?),
                }
            }
            _ => return Some(node),
        };
        self.at += 1;
        let node = Box::new(node);
        (least <= most).then_some(Node::Repeat { node, least, most })
    }

    fn class(&mut self) -> Option<Node> {
        let not = self.peek() == Some('^');
        self.at += usize::from(not);
        let mut ranges = Vec::new();
        loop {
            let from = self.next()?;
            if from == ']' && !ranges.is_empty() {
                return Some(Node::Class { not, ranges });
            }
            let range = self.peek() == Some('-') && self.rest.get(self.at + 1) != Some(&']');
            let to = if range {
                self.at += 1;
                self.next()?
            } else {
                from
            };
            ranges.push((from, to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, value: &str) -> bool {
        Pattern::parse(pattern).is_some_and(|p| p.matches(value))
    }

    #[test]
    fn patterns_of_the_profiles_match_what_they_mean() {
        let addr = "^[^/]+/[0-9]+$";
        assert!(matches(addr, "10.0.0.1:0/3710147553"));
        assert!(!matches(addr, "10.0.0.1"));
        assert!(!matches(addr, "10.0.0.1:0/"));
        assert!(matches(
            "osd_mclock_max_capacity_iops_(hdd|ssd)",
            "osd_mclock_max_capacity_iops_ssd"
        ));
        assert!(!matches("a(b|c)d", "abcd"));
        let rbd = "^([ ,]*profile(=|[ ]+)['\"]?rbd[^ ,'\"]*['\"]?([ ]+pool(=|[ ]+)['\"]?[^,'\"]+['\"]?)?)+$";
        assert!(matches(
            rbd,
            "profile rbd pool=vms, profile rbd-read-only pool=images"
        ));
        assert!(!matches(rbd, "allow *"));
        assert!(matches("x{2,3}", "xxx") && !matches("x{2,3}", "xxxx"));
        assert!(matches("[]a-]+", "]-a"));
        assert!(!matches("b", "abc"), "the whole value is matched");
    }

    #[test]
    fn a_pattern_that_explodes_is_refused_or_quick() {
        assert!(!matches("(a*)*(a*)*(a*)*b", &"a".repeat(64)));
        assert!(!matches("((((a?){99}){99}){99}){99}b", "aaaa"));
    }

    proptest! {
        #[test]
        fn hostile_patterns_never_panic(p in "[a-c(){}|*+?^$,0-3\\[\\]\\\\-]{0,30}", v in "[a-c]{0,12}") {
            let _ = matches(&p, &v);
        }

        #[test]
        fn literals_match_themselves_only(a in "[a-z]{0,8}", b in "[a-z]{0,8}") {
            prop_assert_eq!(matches(&a, &b), a == b);
        }
    }
}

//! The class `hello`: a model for writers of classes, which Ceph's API tests call.
//!
//! Source: `src/cls/hello/cls_hello.cc`.

use crate::codec::AddrType;

use super::{Context, Errno, Method, READ, READ_WRITE, Result, WRITE};

const fn method(
    name: &'static str,
    access: (bool, bool),
    call: fn(&mut dyn Context, &[u8]) -> Result<Vec<u8>>,
) -> Method {
    Method::new("hello", name, access, call)
}

pub(super) const METHODS: &[Method] = &[
    method("say_hello", READ, say_hello),
    method("record_hello", WRITE, record_hello),
    method("replay", READ, replay),
    method("write_return_data", WRITE, write_return_data),
    method("writes_dont_return_data", WRITE, write_return_data),
    method(
        "write_too_much_return_data",
        WRITE,
        write_too_much_return_data,
    ),
    method("turn_it_to_11", READ_WRITE, turn_it_to_11),
];

/// The longest name that is greeted.
const MAX_NAME: usize = 100;
/// The most that is read of a greeting.
const MAX_GREETING: u64 = 1100;

fn greeting(name: &[u8]) -> Result<Vec<u8>> {
    if name.len() > MAX_NAME {
        return Err(Errno::INVAL);
    }
    let name = if name.is_empty() { b"world" } else { name };
    Ok([b"Hello, ", name, b"!"].concat())
}

fn say_hello(_: &mut dyn Context, input: &[u8]) -> Result<Vec<u8>> {
    greeting(input)
}

fn sign(ctx: &mut dyn Context, attr: &str) -> Result<Vec<u8>> {
    let (name, addr) = ctx.origin();
    let mut who = format!("{name} {addr}");
    if addr.kind == AddrType::ANY {
        // Addresses of clients: Ceph writes them without a kind.
        who = who.replacen("any:", "", 1);
    }
    ctx.set_attr(attr, who.as_bytes())?;
    Ok(Vec::new())
}

fn record_hello(ctx: &mut dyn Context, input: &[u8]) -> Result<Vec<u8>> {
    let content = greeting(input)?;
    if ctx.stat().is_ok() {
        return Err(Errno::EXIST);
    }
    ctx.write_full(&content)?;
    sign(ctx, "said_by")
}

fn replay(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    ctx.read(0, MAX_GREETING)
}

fn write_return_data(ctx: &mut dyn Context, input: &[u8]) -> Result<Vec<u8>> {
    ctx.set_attr("foo", b"bar")?;
    if !input.is_empty() {
        return Err(Errno::INVAL);
    }
    ctx.set_code(42);
    Ok(b"you might see this".to_vec())
}

fn write_too_much_return_data(ctx: &mut dyn Context, _: &[u8]) -> Result<Vec<u8>> {
    ctx.set_attr("foo", b"bar")?;
    ctx.set_code(42);
    Ok(b"you should not see this because it is toooooo long. ".repeat(10))
}

fn turn_it_to_11(ctx: &mut dyn Context, input: &[u8]) -> Result<Vec<u8>> {
    if !input.is_empty() {
        return Err(Errno::INVAL);
    }
    let mut content = ctx.read(0, MAX_GREETING)?;
    content.make_ascii_uppercase();
    ctx.write_full(&content)?;
    sign(ctx, "amplified_by")
}

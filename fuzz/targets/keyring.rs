//! Keyring files and keys in base64.

#![no_main]

use cluster::auth::{AuthName, CryptoKey, Keyring};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    if let Ok(keyring) = Keyring::parse("keyring", file) {
        let text = keyring.to_text();
        let again = Keyring::parse("again", text.as_bytes()).expect("our own text");
        assert_eq!(*text, *again.to_text());
        for name in keyring.names() {
            assert_eq!(name.to_string().parse::<AuthName>().as_ref(), Ok(name));
            for (a, b) in keyring.caps(name).zip(again.caps(name)) {
                assert_eq!(a, b);
            }
        }
    }
    if let Ok(text) = std::str::from_utf8(file)
        && let Ok(key) = CryptoKey::from_base64(text)
    {
        let again = CryptoKey::from_base64(&key.to_base64()).expect("our own text");
        assert_eq!(again.secret().as_bytes(), key.secret().as_bytes());
    }
});

//! A line of the control socket, either way.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ublk_rbd::control::{Answer, Request};
use ublk_rbd::spec::{ImageSpec, PoolSpec};

fuzz_target!(|line: &[u8]| {
    if let Ok(request) = serde_json::from_slice::<Request>(line) {
        let again = serde_json::to_vec(&request).expect("a request is JSON");
        assert_eq!(
            serde_json::from_slice::<Request>(&again).ok(),
            Some(request)
        );
    }
    if let Ok(answer) = serde_json::from_slice::<Answer>(line) {
        let again = serde_json::to_vec(&answer).expect("an answer is JSON");
        assert_eq!(serde_json::from_slice::<Answer>(&again).ok(), Some(answer));
    }
    let Ok(text) = std::str::from_utf8(line) else {
        return;
    };
    if let Ok(image) = text.parse::<ImageSpec>() {
        assert_eq!(image.to_string().parse(), Ok(image));
    }
    let _ = text.parse::<PoolSpec>();
    let _ = ublk_rbd::spec::bytes(text);
});

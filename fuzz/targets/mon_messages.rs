//! The front of any message between client and monitor.

#![no_main]

use cluster::mon::message::{
    MAuth, MAuthReply, MConfig, MMonCommand, MMonCommandAck, MMonGetMap, MMonGetVersion,
    MMonGetVersionReply, MMonMap, MMonSubscribe, MMonSubscribeAck, MPoolOp, MPoolOpReply, Message,
};
use libfuzzer_sys::fuzz_target;

/// What was read comes back from what is written.
fn read<M: Message + PartialEq + std::fmt::Debug>(version: u16, front: &[u8]) {
    if let Ok(message) = M::decode(version, front) {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert_eq!(M::decode(M::VERSION, &again), Ok(message));
    }
}

const READERS: [fn(u16, &[u8]); 13] = [
    read::<MMonGetMap>,
    read::<MMonMap>,
    read::<MMonSubscribe>,
    read::<MMonSubscribeAck>,
    read::<MMonGetVersion>,
    read::<MMonGetVersionReply>,
    read::<MConfig>,
    read::<MMonCommand>,
    read::<MMonCommandAck>,
    read::<MAuth>,
    read::<MAuthReply>,
    read::<MPoolOp>,
    read::<MPoolOpReply>,
];

fuzz_target!(|data: &[u8]| {
    if let [kind, version, front @ ..] = data
        && let Some(read) = READERS.get(usize::from(*kind))
    {
        read(u16::from(*version), front);
    }
});

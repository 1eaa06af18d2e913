//! The commands of the protocol: 32-byte messages in network byte order.

use crate::ProtocolError;

/// The length of a command in bytes.
pub(crate) const LEN: usize = 32;

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// The client requests the server's features. The server replies with the same command.
    GetServerFeature(Features),
    /// The client selects features for this connection.
    SetClientFeature(Features),
    /// The sender is alive. No reply is needed, because the receiving device acknowledges the
    /// message.
    Keepalive,
    /// The sender announces a buffer for incoming bytes.
    RegisterXferMemory(Memory),
}

/// The number of a feature set, and a mask of the features in this set that the sender supports or
/// selects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) select: u16,
    pub(crate) bits: u64,
}

/// A buffer in the memory of the command's sender. The receiver of the command may write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) key: u32,
}

impl Command {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::GetServerFeature(_) => "GetServerFeature",
            Self::SetClientFeature(_) => "SetClientFeature",
            Self::Keepalive => "Keepalive",
            Self::RegisterXferMemory(_) => "RegisterXferMemory",
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let opcode: u16 = match self {
            Self::GetServerFeature(_) => 0,
            Self::SetClientFeature(_) => 1,
            Self::Keepalive => 2,
            Self::RegisterXferMemory(_) => 3,
        };
        bytes[..2].copy_from_slice(&opcode.to_be_bytes());
        match self {
            Self::GetServerFeature(features) | Self::SetClientFeature(features) => {
                bytes[2..4].copy_from_slice(&features.select.to_be_bytes());
                bytes[24..].copy_from_slice(&features.bits.to_be_bytes());
            }
            Self::Keepalive => {}
            Self::RegisterXferMemory(memory) => {
                bytes[16..24].copy_from_slice(&memory.addr.to_be_bytes());
                bytes[24..28].copy_from_slice(&memory.length.to_be_bytes());
                bytes[28..].copy_from_slice(&memory.key.to_be_bytes());
            }
        }
        bytes
    }

    /// Decodes a command. Ignores the reserved bytes, which later versions of the protocol may
    /// define.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let len = bytes.len();
        let Ok(bytes) = <&[u8; LEN]>::try_from(bytes) else {
            return Err(ProtocolError::Length { len });
        };
        let features = Features {
            select: u16::from_be_bytes([bytes[2], bytes[3]]),
            bits: number(&bytes[24..]),
        };
        match u16::from_be_bytes([bytes[0], bytes[1]]) {
            0 => Ok(Self::GetServerFeature(features)),
            1 => Ok(Self::SetClientFeature(features)),
            2 => Ok(Self::Keepalive),
            3 => {
                let addr = number(&bytes[16..24]);
                // Each number has four bytes, so the casts are lossless.
                let (length, key) = (number(&bytes[24..28]) as u32, number(&bytes[28..]) as u32);
                let ends = addr.checked_add(length.into()).is_some();
                if length == 0 || key == 0 || !ends {
                    return Err(ProtocolError::Memory { addr, length, key });
                }
                Ok(Self::RegisterXferMemory(Memory { addr, length, key }))
            }
            opcode => Err(ProtocolError::Opcode { opcode }),
        }
    }
}

/// Decodes a number of up to 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEMORY: Memory = Memory {
        addr: 0x0102_0304_0506_0708,
        length: 0x090a_0b0c,
        key: 0x0d0e_0f10,
    };

    #[test]
    fn commands_have_the_documented_layout() {
        let features = Features {
            select: 0x1122,
            bits: 0x0102_0304_0506_0708,
        };
        let mut bytes = [0; LEN];
        bytes[2..4].copy_from_slice(&[0x11, 0x22]);
        bytes[24..].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Command::GetServerFeature(features).to_bytes(), bytes);
        bytes[1] = 1;
        assert_eq!(Command::SetClientFeature(features).to_bytes(), bytes);
        let mut bytes = [0; LEN];
        bytes[1] = 2;
        assert_eq!(Command::Keepalive.to_bytes(), bytes);
        bytes[1] = 3;
        for (byte, number) in bytes[16..].iter_mut().zip(1..) {
            *byte = number;
        }
        assert_eq!(Command::RegisterXferMemory(MEMORY).to_bytes(), bytes);
    }

    #[test]
    fn malformed_commands_are_named() {
        let keepalive = Command::Keepalive.to_bytes();
        for len in [0, 1, 31] {
            let error = Command::parse(&keepalive[..len]);
            assert_eq!(error, Err(ProtocolError::Length { len }));
        }
        let error = Command::parse(&[0; 33]);
        assert_eq!(error, Err(ProtocolError::Length { len: 33 }));
        for opcode in [4_u16, 0x0200, 0xffff] {
            let mut bytes = keepalive;
            bytes[..2].copy_from_slice(&opcode.to_be_bytes());
            assert_eq!(
                Command::parse(&bytes),
                Err(ProtocolError::Opcode { opcode })
            );
        }
        for (addr, length, key) in [
            (1, 0, 1),
            (1, 1, 0),
            (u64::MAX, 1, 1),
            (u64::MAX - 8, 16, 1),
        ] {
            let memory = Memory { addr, length, key };
            let bytes = Command::RegisterXferMemory(memory).to_bytes();
            let error = ProtocolError::Memory { addr, length, key };
            assert_eq!(Command::parse(&bytes), Err(error));
        }
    }

    #[test]
    fn reserved_bytes_are_ignored() {
        let mut bytes = Command::RegisterXferMemory(MEMORY).to_bytes();
        bytes[2..16].fill(0xff);
        let parsed = Command::parse(&bytes);
        assert_eq!(parsed, Ok(Command::RegisterXferMemory(MEMORY)));
    }

    proptest! {
        #[test]
        fn accepted_bytes_encode_the_same_command(
            opcode in 0_u16..5, rest: [u8; 30]
        ) {
            let mut bytes = [0; LEN];
            bytes[..2].copy_from_slice(&opcode.to_be_bytes());
            bytes[2..].copy_from_slice(&rest);
            if let Ok(command) = Command::parse(&bytes) {
                prop_assert_eq!(Command::parse(&command.to_bytes()), Ok(command));
            }
        }
    }
}

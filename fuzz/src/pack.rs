//! A corpus in one file: inputs one after the other, each after its length in four bytes, little-endian.
//!
//! A corpus has some hundreds of inputs of a few dozen bytes that nobody reviews one by one; as files they
//! would be most of the files of the repository. Inputs written by people are in the targets, and in
//! `findings`.

/// The inputs of a packed corpus.
///
/// # Errors
/// It ends within an input.
pub fn unpack(mut packed: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut inputs = Vec::new();
    while !packed.is_empty() {
        let cut = || format!("the corpus ends within input {}", inputs.len());
        let (length, rest) = packed.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| cut())?;
        let (input, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        inputs.push(input.to_vec());
        packed = rest;
    }
    Ok(inputs)
}

/// One file of these inputs, sorted and each once.
///
/// # Errors
/// An input has 4 GiB or more.
pub fn pack(mut inputs: Vec<Vec<u8>>) -> Result<Vec<u8>, String> {
    inputs.sort();
    inputs.dedup();
    let mut packed = Vec::new();
    for input in inputs {
        let length = u32::try_from(input.len()).map_err(|_| format!("an input has {} bytes", input.len()))?;
        packed.extend_from_slice(&length.to_le_bytes());
        packed.extend_from_slice(&input);
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pack_round_trips_and_a_truncated_file_is_an_error() {
        let inputs = vec![b"".to_vec(), b"a".to_vec(), vec![0; 300]];
        let packed = pack([inputs.clone(), inputs.clone()].concat()).expect("they are small");
        let mut sorted = inputs;
        sorted.sort();
        assert_eq!(unpack(&packed), Ok(sorted));
        for end in [1, 3, packed.len() - 1] {
            assert!(unpack(&packed[..end]).is_err(), "{end}");
        }
    }
}

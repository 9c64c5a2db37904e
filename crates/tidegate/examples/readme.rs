//! The program of the README, in a file without anything else, so that a test can compare the two.

include!("readme.txt");

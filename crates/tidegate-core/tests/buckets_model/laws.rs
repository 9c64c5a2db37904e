//! Laws that hold whatever the model says.

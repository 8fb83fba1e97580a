"""What every position scheme must satisfy, as checks that anybody's scheme or attention can run."""

"""Pictures: their texts, to the letter, and that their images are images."""

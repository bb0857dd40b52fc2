"""What a network learns: classes, a teacher's answers, masked patches."""

"""What a partition is: runs and rules of c-means, models for new objects, files of labels and memberships."""
